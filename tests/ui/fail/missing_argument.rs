use nn::*;

sequential! {
    Net: [4] -> [8] = Linear<4>, ReLU
}

fn main() {}
