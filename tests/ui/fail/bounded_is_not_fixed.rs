use nn::*;

sequential! {
    Net: [..512, 384] -> [512, 10] = Linear<384, 10>
}

fn main() {}
