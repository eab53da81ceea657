use nn::*;

#[module]
struct Net {
    __metadata__: Param<T![4]>,
    fc: Linear<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        self.fc(x) + self.__metadata__
    }
}

fn main() {}
