/// A string that a `const fn` can build: messages of the compiler's making are data.
#[derive(Clone, Copy)]
pub struct Text {
    bytes: [u8; Self::CAPACITY],
    len: usize,
}

impl Text {
    const CAPACITY: usize = 512;

    /// Nothing.
    pub const fn new() -> Self {
        Self { bytes: [0; Self::CAPACITY], len: 0 }
    }

    /// Appends a string; what does not fit is cut off at a character's boundary.
    pub const fn str(mut self, s: &str) -> Self {
        let s = s.as_bytes();
        let mut take = s.len();
        if take > Self::CAPACITY - self.len {
            take = Self::CAPACITY - self.len;
            while take > 0 && s[take] & 0xC0 == 0x80 {
                take -= 1;
            }
        }
        let mut i = 0;
        while i < take {
            self.bytes[self.len + i] = s[i];
            i += 1;
        }
        self.len += take;
        self
    }

    /// Appends a number in decimal.
    pub const fn num(self, mut n: usize) -> Self {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        match std::str::from_utf8(digits.split_at(at).1) {
            Ok(s) => self.str(s),
            Err(_) => self,
        }
    }

    /// Appends a real number, to six decimals at most: `0.1`, `-2`.
    pub const fn real(self, x: f64) -> Self {
        if x.is_nan() {
            return self.str("NaN");
        }
        let text = if x < 0.0 { self.str("-") } else { self };
        let size = x.abs();
        if size > 1e12 {
            return text.str("more than 10^12");
        }
        let millionths = (size * 1e6 + 0.5) as usize;
        let text = text.num(millionths / 1_000_000);
        let mut rest = millionths % 1_000_000;
        if rest == 0 {
            return text;
        }
        let mut places = 6;
        while rest.is_multiple_of(10) {
            rest /= 10;
            places -= 1;
        }
        let mut text = text.str(".");
        let mut bound = 1;
        while places > 1 {
            bound *= 10;
            places -= 1;
        }
        while rest < bound {
            text = text.str("0");
            bound /= 10;
        }
        text.num(rest)
    }

    /// Appends another text.
    pub const fn text(self, other: &Text) -> Self {
        self.str(other.as_str())
    }

    /// What has been built.
    pub const fn as_str(&self) -> &str {
        match std::str::from_utf8(self.bytes.split_at(self.len).0) {
            Ok(s) => s,
            Err(_) => "",
        }
    }

    /// Whether nothing was appended.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Default for Text {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// Whether two strings are equal, in a `const fn`.
pub(crate) const fn same_str(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::Text;

    #[test]
    fn text_is_cut_at_a_character() {
        let mut t = Text::new();
        for _ in 0..511 {
            t = t.str("x");
        }
        assert_eq!(t.str("é").as_str().len(), 511);
        assert_eq!(t.str("yz").as_str().len(), 512);
    }

    #[test]
    fn real_numbers_are_short() {
        for (x, shown) in
            [(0.1, "0.1"), (-2.0, "-2"), (1.5, "1.5"), (0.0205, "0.0205"), (1e-9, "0"), (0.25, "0.25")]
        {
            assert_eq!(Text::new().real(x).as_str(), shown);
        }
    }

    #[test]
    fn numbers_are_decimal() {
        const T: Text = Text::new().num(0).str(" ").num(usize::MAX);
        assert_eq!(T.as_str(), "0 18446744073709551615");
    }
}
