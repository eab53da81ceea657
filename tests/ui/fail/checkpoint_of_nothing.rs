use nn::*;

sequential! { Net: [4] -> [2] = fc1: LinearReLU<4, 8>, fc2: Linear<8, 2> }

checkpoint!("headers/nothing.json" as Net, may_lack = "", extra = allow);

fn main() {}
