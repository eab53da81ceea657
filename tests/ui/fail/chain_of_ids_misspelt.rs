use nn::*;

sequential! {
    Net: Idx[4] -> [8] = Linear<4, 8>
}

fn main() {}
