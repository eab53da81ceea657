//! A text to learn from where there is no other: numbers, and what they are called.

use nn::kernels::philox::Philox;

/// Lines such as `1207 is one thousand two hundred and seven`, of up to four digits.
pub(crate) fn text(lines: usize, seed: u64) -> String {
    let mut random = Philox::new(seed, 0);
    let mut text = String::new();
    for _ in 0..lines {
        // As many of one digit as of four.
        let below = 10_u32.pow(1 + random.below(4));
        let n = random.below(below);
        text.push_str(&format!("{n} is {}\n", words(n)));
    }
    text
}

/// How many of the whole lines are right, and how many there are.
pub(crate) fn right(text: &str) -> (usize, usize) {
    let lines: Vec<_> = text.split_inclusive('\n').filter(|l| l.ends_with('\n') && l.len() > 1).collect();
    let is_right = |line: &str| {
        let (n, name) = line.trim_end().split_once(" is ")?;
        // A number that begins with 0 would be another line.
        n.parse().ok().filter(|v: &u32| v.to_string() == n && *v < 1_000_000 && words(*v) == name)
    };
    (lines.iter().filter(|line| is_right(line).is_some()).count(), lines.len())
}

const SMALL: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 8] = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];

/// A number below a million in words.
fn words(n: u32) -> String {
    let (name, rest, joint) = match n {
        0..20 => return SMALL[n as usize].to_owned(),
        20..100 => (TENS[(n / 10 - 2) as usize].to_owned(), n % 10, "-"),
        100..1000 => (format!("{} hundred", words(n / 100)), n % 100, " and "),
        _ => (format!("{} thousand", words(n / 1000)), n % 1000, if n % 1000 < 100 { " and " } else { " " }),
    };
    if rest == 0 { name } else { name + joint + &words(rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_names() {
        for (n, name) in [
            (0, "zero"),
            (13, "thirteen"),
            (40, "forty"),
            (87, "eighty-seven"),
            (100, "one hundred"),
            (311, "three hundred and eleven"),
            (1000, "one thousand"),
            (1005, "one thousand and five"),
            (20_120, "twenty thousand one hundred and twenty"),
            (999_999, "nine hundred and ninety-nine thousand nine hundred and ninety-nine"),
        ] {
            assert_eq!(words(n), name);
        }
    }

    #[test]
    fn right_lines_are_counted() {
        let text = text(500, 3);
        assert_eq!(right(&text), (500, 500));
        assert_eq!(right("7 is seven\n8 is nine\n\n012 is twelve\nseven\n9 is ni"), (1, 4));
        assert!(text.lines().any(|l| l.len() > 40) && text.lines().any(|l| l.len() < 12));
    }
}
