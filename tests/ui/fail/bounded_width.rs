use nn::*;

sequential! {
    Net: [..512] -> [10] = Linear<512, 10>
}

fn main() {}
