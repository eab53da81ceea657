use nn::*;

sequential! {
    Net: [4] -> [8] = #[init(ReLU)] Linear<4, 8>
}

fn main() {}
