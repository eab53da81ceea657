use nn::*;

#[module]
struct Net {
    fc: Linear<4, 8>,
}

#[module]
impl Net {
    fn forward(&self, x: Vec<f32>) -> T![8] {
        self.fc(x)
    }
}

fn main() {}
