use nn::*;

#[module]
struct Net {
    fc1: Linear<784, 64>,
    fc2: Linear<63, 32>,
    fc3: Linear<32, 16>,
    fc4: Linear<15, 10>,
}

#[module]
impl Net {
    fn forward(&self, x: T![784]) -> T![10] {
        let h = self.fc2(self.fc1(x));
        self.fc4(self.fc3(h))
    }
}

fn main() {}
