//! What `checkpoint!` has the compiler do: compare a model's parameters with a file's header.

use crate::Text;
use crate::dims::Dims;
use crate::fault::Fault;
use crate::text::same_str;
use crate::tree::{Node, after, joined};

/// A tensor of a file's header.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The hash of its name, FNV-1a; entries are sorted by it.
    pub hash: u64,
    /// What it is called in the model.
    pub name: &'static str,
    /// What it is called in the file.
    pub file: &'static str,
    /// Its type: `F32`.
    pub dtype: &'static str,
    /// Its shape.
    pub shape: &'static [usize],
}

/// What is asked of a file.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The model.
    pub model: Text,
    /// Paths at or below which parameters are to be compared; empty for all.
    pub only: &'static [&'static str],
    /// Words of the paths of parameters that may be missing.
    pub may_lack: &'static [&'static str],
    /// Paths at or below which the file has matrices the other way round.
    pub transposed: &'static [&'static str],
    /// The one type they may have; empty for all that can be converted.
    pub dtype: &'static str,
}

/// What the comparison found, for a file of `N` tensors.
#[derive(Clone, Copy, Debug)]
pub struct Compared<const N: usize> {
    /// Parameters that the file lacks.
    pub missing: Option<Fault>,
    /// Parameters of another shape.
    pub misshapen: Option<Fault>,
    /// Tensors of a type that can't be a parameter.
    pub mistyped: Option<Fault>,
    /// Tensors that are no parameter.
    pub extra: Option<Fault>,
    /// Nothing that is asked for is there.
    pub nothing: Option<Fault>,
    used: [bool; N],
    /// Which paths of `only`, then of `may_lack` and `transposed`, are some parameter's.
    known: u64,
}

/// FNV-1a of a text after one with the hash `state`; 64-bit, so that two of a file's names that meet are not to be
/// expected, and the names are compared as well.
pub(crate) const fn hash(state: u64, text: &str) -> u64 {
    let bytes = text.as_bytes();
    let (mut state, mut i) = (state, 0);
    while i < bytes.len() {
        state = (state ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01B3);
        i += 1;
    }
    state
}

/// The hash of nothing.
const START: u64 = 0xCBF2_9CE4_8422_2325;

/// The first of several alike, in words, and how many there are.
#[derive(Clone, Copy)]
struct Found {
    text: Text,
    /// The names of the next few.
    others: Text,
    count: usize,
}

impl Found {
    const NONE: Self = Self { text: Text::new(), others: Text::new(), count: 0 };
    const SHOWN: usize = 4;

    /// One more; its text is said if it is the first.
    const fn push(&mut self, path: &str, text: Text) {
        if self.count == 0 {
            self.text = text;
        } else if self.count < Self::SHOWN {
            let others = self.others.str(if self.count > 1 { ", `" } else { "`" });
            self.others = others.str(path).str("`");
        }
        self.count += 1;
    }

    const fn fault(&self) -> Option<Fault> {
        if self.count == 0 {
            return None;
        }
        if self.count == 1 {
            return Some(Fault::new(self.text));
        }
        let text = self.text.str("; likewise ").num(self.count - 1).str(" more: ").text(&self.others);
        Some(Fault::new(if self.count > Self::SHOWN { text.str(", …") } else { text }))
    }
}

struct Walk<'e, const N: usize> {
    entries: &'e [Entry; N],
    wanted: &'e Wanted,
    used: [bool; N],
    known: u64,
    missing: Found,
    misshapen: Found,
    mistyped: Found,
    /// The path of the first that is missing.
    lacks: Text,
    matched: usize,
}

/// Compares the parameters below `tree` with a file's tensors, which are told of in this order.
pub const fn compare<const N: usize>(
    tree: &Node,
    entries: &[Entry; N],
    order: &[usize; N],
    wanted: &Wanted,
) -> Compared<N> {
    let mut walk = Walk {
        entries,
        wanted,
        used: [false; N],
        known: 0,
        missing: Found::NONE,
        misshapen: Found::NONE,
        mistyped: Found::NONE,
        lacks: Text::new(),
        matched: 0,
    };
    walk.node(tree, &Text::new(), START);
    let mut extra = Found::NONE;
    let mut k = 0;
    while k < N {
        let i = order[k];
        if !walk.used[i] && !is_counter(entries[i].file) {
            let text = Text::new().str("the checkpoint has `").str(entries[i].file).str("` ");
            let text = write_shape(entries[i].shape, text).str(", for which `").text(&wanted.model);
            extra.push(entries[i].file, text.str("` has no parameter"));
        }
        k += 1;
    }
    if walk.missing.count > 0
        && let Some(near) = walk.nearest()
    {
        walk.missing.text = walk.missing.text.str("; it has `").str(near).str("`");
    }
    let nothing = if walk.matched == 0 && walk.missing.count == 0 {
        let text =
            Text::new().str("none of the checkpoint's tensors is a parameter of `").text(&wanted.model);
        Some(Fault::new(text.str("` that is asked for")))
    } else {
        None
    };
    Compared {
        missing: walk.missing.fault(),
        misshapen: walk.misshapen.fault(),
        mistyped: walk.mistyped.fault(),
        extra: extra.fault(),
        nothing,
        used: walk.used,
        known: walk.known,
    }
}

impl<const N: usize> Compared<N> {
    /// Whether the path `i`, of `only`, then `may_lack` and `transposed`, is some parameter's.
    pub const fn check_path(&self, i: usize, path: &str, wanted: &Wanted) -> Option<Fault> {
        if i >= 64 || self.known >> i & 1 == 1 {
            return None;
        }
        let text = Text::new().str("`").text(&wanted.model).str("` has no parameter at or below `").str(path);
        Some(Fault::new(text.str("`")))
    }

    /// The number of the `k`th tensor that is no parameter, or `N`.
    pub const fn nth_extra(&self, k: usize, entries: &[Entry; N], order: &[usize; N]) -> usize {
        let (mut at, mut left) = (0, k);
        while at < N {
            let i = order[at];
            if !self.used[i] && !is_counter(entries[i].file) {
                if left == 0 {
                    return i;
                }
                left -= 1;
            }
            at += 1;
        }
        N
    }
}

impl<const N: usize> Walk<'_, N> {
    const fn node(&mut self, node: &Node, path: &Text, state: u64) {
        self.leaves(node, None, path, state);
        let mut i = 0;
        while i < node.children.len() {
            let child = &node.children[i];
            let mut copy = 0;
            while child.tied.is_none() && copy < child.copies() {
                let mut k = 0;
                while k < child.names() {
                    let name = child.shown(k);
                    let (mut below, mut hashed) = (joined(path, name), step(state, path, name));
                    if child.times.is_some() {
                        let number = Text::new().num(copy);
                        hashed = step(hashed, &below, number.as_str());
                        below = joined(&below, number.as_str());
                    }
                    match child.pieces {
                        Some(_) => self.leaves(child.node, Some((child, k)), &below, hashed),
                        None => self.node(child.node, &below, hashed),
                    }
                    k += 1;
                }
                copy += 1;
            }
            i += 1;
        }
    }

    const fn leaves(&mut self, node: &Node, piece: Option<(&crate::Child, usize)>, path: &Text, state: u64) {
        let mut i = 0;
        while i < node.leaves.len() {
            let leaf = &node.leaves[i];
            let mut dims = leaf.dims;
            if let Some((child, k)) = piece
                && dims.rank() > 0
            {
                dims = dims.with(0, crate::Extent::new(child.rows(k, dims.n(0)).1));
            }
            self.leaf(&joined(path, leaf.name), step(state, path, leaf.name), &dims);
            i += 1;
        }
    }

    const fn leaf(&mut self, path: &Text, state: u64, dims: &Dims) {
        let (path, wanted) = (path.as_str(), self.wanted);
        let (only, seen) = below(path, wanted.only);
        self.know(seen, 0);
        let (may_lack, seen) = within(path, wanted.may_lack);
        self.know(seen, wanted.only.len());
        let (turned, seen) = below(path, wanted.transposed);
        self.know(seen, wanted.only.len() + wanted.may_lack.len());
        let dims = if turned && dims.rank() == 2 { &Dims::new(&[dims.axis(1), dims.axis(0)]) } else { dims };
        if !wanted.only.is_empty() && !only {
            return;
        }
        let Some(i) = self.find(path, state) else {
            if !may_lack {
                if self.missing.count == 0 {
                    self.lacks = Text::new().str(path);
                }
                let text = Text::new().str("the checkpoint has no `").str(path).str("`, which is ");
                self.missing.push(path, dims.write(text).str(" in `").text(&wanted.model).str("`"));
            }
            return;
        };
        self.used[i] = true;
        self.matched += 1;
        let entry = &self.entries[i];
        if !is_shape(dims, entry.shape) && !dims.is_poison() {
            let text = Text::new().str("`").str(path).str("` is ");
            let text = dims.write(text).str(" in `").text(&wanted.model).str("`, but ");
            self.misshapen.push(path, write_shape(entry.shape, text).str(" in the checkpoint"));
        }
        let text = Text::new().str("`").str(path).str("` is ").str(entry.dtype).str(" in the checkpoint, ");
        if !is_float(entry.dtype) {
            self.mistyped.push(path, text.str("which can't be a parameter: those are F64, F32, F16 or BF16"));
        } else if !wanted.dtype.is_empty() && !same_str(wanted.dtype, entry.dtype) {
            self.mistyped.push(path, text.str("but ").str(wanted.dtype).str(" is asked for"));
        }
    }

    /// Marks paths, of which the first has this number, as some parameter's.
    const fn know(&mut self, seen: u64, first: usize) {
        if first < 64 {
            self.known |= seen << first;
        }
    }

    /// The tensor of this name.
    const fn find(&self, path: &str, state: u64) -> Option<usize> {
        let (mut from, mut to) = (0, N);
        while from < to {
            let middle = from + (to - from) / 2;
            if self.entries[middle].hash < state {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        if from < N && self.entries[from].hash == state && same_str(self.entries[from].name, path) {
            Some(from)
        } else {
            None
        }
    }

    /// The name, of those that are no parameter, that has most in common with the first that is missing.
    const fn nearest(&self) -> Option<&'static str> {
        let (mut best, mut most, mut i) = (None, 0, 0);
        let lacks = self.lacks.as_str();
        while i < N {
            if !self.used[i] {
                let common = in_common(lacks, self.entries[i].name);
                if common > most && common * 4 >= lacks.len() * 3 {
                    (best, most) = (Some(self.entries[i].file), common);
                }
            }
            i += 1;
        }
        best
    }
}

/// The hash of a path and a name after it.
const fn step(state: u64, path: &Text, name: &str) -> u64 {
    let state = if path.is_empty() || name.is_empty() { state } else { hash(state, ".") };
    hash(state, name)
}

/// Whether a path is at or below one of these, and which.
const fn below(path: &str, above: &[&str]) -> (bool, u64) {
    let (mut which, mut i) = (0, 0);
    while i < above.len() && i < 64 {
        if after(path, above[i]).is_some() {
            which |= 1 << i;
        }
        i += 1;
    }
    (which != 0, which)
}

/// Whether a path has the words of one of these next to each other, whole ones between dots, and which.
const fn within(path: &str, words: &[&str]) -> (bool, u64) {
    let (bytes, mut which, mut at) = (path.as_bytes(), 0, 0);
    while at < bytes.len() {
        if (at == 0 || bytes[at - 1] == b'.')
            && let Some((_, rest)) = path.split_at_checked(at)
        {
            which |= below(rest, words).1;
        }
        at += 1;
    }
    (which != 0, which)
}

/// Letters that two names have in common at their beginnings and ends.
const fn in_common(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let shorter = if a.len() < b.len() { a.len() } else { b.len() };
    let mut first = 0;
    while first < shorter && a[first] == b[first] {
        first += 1;
    }
    let mut last = 0;
    while last < shorter - first && a[a.len() - 1 - last] == b[b.len() - 1 - last] {
        last += 1;
    }
    first + last
}

const fn is_shape(dims: &Dims, shape: &[usize]) -> bool {
    if dims.rank() != shape.len() {
        return false;
    }
    let mut i = 0;
    while i < shape.len() {
        if dims.n(i) != shape[i] {
            return false;
        }
        i += 1;
    }
    true
}

const fn write_shape(shape: &[usize], text: Text) -> Text {
    let (mut text, mut i) = (text.str("["), 0);
    while i < shape.len() {
        text = text.str(if i > 0 { ", " } else { "" }).num(shape[i]);
        i += 1;
    }
    text.str("]")
}

const fn is_float(dtype: &str) -> bool {
    same_str(dtype, "F32") || same_str(dtype, "F16") || same_str(dtype, "BF16") || same_str(dtype, "F64")
}

/// Whether it is what loading passes over: see `checkpoint`.
const fn is_counter(name: &str) -> bool {
    let (name, counter) = (name.as_bytes(), crate::checkpoint::COUNTER.as_bytes());
    if name.len() < counter.len() {
        return false;
    }
    let start = name.len() - counter.len();
    let mut i = 0;
    while i < counter.len() {
        if name[start + i] != counter[i] {
            return false;
        }
        i += 1;
    }
    start == 0 || name[start - 1] == b'.'
}
