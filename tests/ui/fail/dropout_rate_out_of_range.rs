use nn::*;

sequential! {
    Net: [8] -> [8] = Linear<8, 8>, Dropout<1.5>
}

fn main() {}
