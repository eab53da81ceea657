use nn::*;

sequential! {
    Net: [16, 8] -> [16, 8] = Linear<8, 8>, PosEmbed<12, 8>
}

fn main() {}
