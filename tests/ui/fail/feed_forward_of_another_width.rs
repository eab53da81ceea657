use nn::*;

sequential! {
    Net: [9, 32] -> [9, 32] = FeedForwardGELU<32, 64>, SwiGLUFeedForward<64, 32>
}

fn main() {}
