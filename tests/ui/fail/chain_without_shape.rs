use nn::*;

sequential! {
    Net = Linear<4, 8>
}

fn main() {}
