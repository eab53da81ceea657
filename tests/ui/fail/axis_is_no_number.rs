use nn::*;

sequential! {
    Net: [4 x 8] -> [8] = Flatten, Linear<32, 8>
}

fn main() {}
