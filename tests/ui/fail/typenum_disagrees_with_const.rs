use nn::*;

use typenum::{Prod, U3, U64};

sequential! {
    Net: [10] -> [10] = LinearOf<typenum::U10, Prod<U3, U64>>, Linear<191, 10>
}

fn main() {}
