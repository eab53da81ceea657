use nn::*;

sequential! { Net: [4] -> [2] = fc1: LinearReLU<4, 8>, fc2: Linear<8, 2> }

checkpoint!("headers/good.json" as String);

fn main() {}
