use nn::*;

sequential! {
    Net: [16, 60] -> [16, 60] = RoPE<16, 4, 15>
}

fn main() {}
