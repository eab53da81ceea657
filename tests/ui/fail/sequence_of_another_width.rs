use nn::*;

sequential! {
    Net: [10, 3] -> [10, 5] = LSTMSeq<3, 5, 10>, GRUSeq<3, 5, 10>
}

fn main() {}
