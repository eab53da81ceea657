use nn::*;

sequential! {
    Net: [16, 128] -> [3, 4, 16, 16] = QKVToMajor<16, 4, 16>
}

fn main() {}
