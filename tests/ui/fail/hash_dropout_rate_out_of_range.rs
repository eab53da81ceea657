use nn::*;

sequential! {
    Net: [8] -> [8] = Linear<8, 8>, HashDropout<1.0>
}

fn main() {}
