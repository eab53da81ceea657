use nn::*;

sequential! {
    Net: [..64, 32] -> [..64, 32] = Repeat<DecoderBlock<48, 32, 4, 128>, 6>
}

fn main() {}
