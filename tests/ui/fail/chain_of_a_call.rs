use nn::*;

sequential! {
    Net: [4] -> [8] = Linear(4, 8), ReLU
}

fn main() {}
