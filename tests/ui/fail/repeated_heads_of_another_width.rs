use nn::*;

sequential! {
    Net: [16, 64] -> [16, 96] = RepeatKVHeads<16, 2, 3, 16>
}

fn main() {}
