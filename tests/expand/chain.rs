sequential! {
    /// Two layers.
    pub Net: [784] -> [10] = LinearReLU<784, 64>, Linear<64, 10>
}
