use nn::*;

sequential! {
    Net: [..16, 8] -> [128] = Linear<8, 8>, Flatten
}

fn main() {}
