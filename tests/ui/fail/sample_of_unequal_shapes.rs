use nn::*;

#[module]
struct Policy {
    mean: Linear<4, 3>,
    log_std: Linear<4, 2>,
}
#[module]
impl Policy {
    fn forward(&self, x: T![4]) -> (T![3], T![1]) {
        RSampleTanh::<3>(self.mean(x), self.log_std(x))
    }
}

fn main() {}
