use nn::*;

sequential! {
    Net: [1, 2, 3, 4, 5, 6, 7] -> [1] = ReLU
}

fn main() {}
