use nn::*;

sequential! {
    Net: Ids[..32] -> [..32, 64] = Embedding<100, 48>, CausalSelfAttention<32, 64, 4>
}

fn main() {}
