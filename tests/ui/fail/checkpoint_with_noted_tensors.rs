use nn::*;

sequential! { Net: [4] -> [2] = fc1: LinearReLU<4, 8>, fc2: Linear<8, 2> }

// Notes are warnings, so that something else must fail here.
checkpoint!("headers/extra.json" as Net, extra = note);
checkpoint!("headers/nothing.json" as Net);

fn main() {}
