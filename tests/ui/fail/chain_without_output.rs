use nn::*;

sequential! {
    Net: [4] = Linear<4, 8>
}

fn main() {}
