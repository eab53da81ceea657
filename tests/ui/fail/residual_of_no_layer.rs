use nn::*;

struct Thing;

sequential! {
    Net: [8] -> [8] = Linear<8, 8>, Residual<Thing>
}

fn main() {}
