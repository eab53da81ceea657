use nn::*;

sequential! {
    Net: [4] -> [8] = #[init = "zero"] Linear<4, 8>
}

fn main() {}
