use nn::*;

sequential! {
    Net: Ids[8] -> [8, 4] = StopGrad, Embedding<10, 4>
}

fn main() {}
