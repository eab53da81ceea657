use nn::*;

sequential! {
    Net: [4] -> [8] =
}

fn main() {}
