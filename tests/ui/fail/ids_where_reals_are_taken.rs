use nn::*;

sequential! {
    Net: Ids[4] -> [8] = Linear<4, 8>
}

fn main() {}
