use nn::*;

sequential! {
    Net: [1024, 768] -> [64, 12288] = PixelShuffle<32, 768, 5>
}

fn main() {}
