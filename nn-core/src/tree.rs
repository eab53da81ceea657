use nn_kernels::Packing;

use crate::Text;
use crate::dims::{Dims, Extent};
use crate::fault::{Fault, Rule};
use crate::init::Init;
use crate::signature::Sig;
use crate::text::same_str;

/// Parameter tensors start at multiples of this many elements, so that a vector load never straddles two.
const ALIGN: usize = 16;
/// The most elements that are counted. It is more than any machine holds, which is an error where memory is asked
/// for; sums of what is at most this don't overflow.
const MOST: usize = (usize::MAX >> 16) / ALIGN * ALIGN;

/// The product, but at most [`MOST`].
const fn times(n: usize, copies: usize) -> usize {
    at_most(n.saturating_mul(copies))
}

const fn at_most(n: usize) -> usize {
    if n > MOST { MOST } else { n }
}

/// What a parameter is for: it decides who initialises it and whether it decays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// A matrix, kernel or table: decays, and takes a model's initialiser.
    Weight,
    /// Added: no decay.
    Bias,
    /// A normalisation's gain: no decay, and initialisers leave it at one.
    Scale,
    /// Not optimised: running statistics. Saved, and copied to target networks. A forward pass in training may change it.
    State,
    /// Not optimised, and changed by no call: a weight, or a bias if it has one axis, that stays as it was initialised or
    /// loaded. Saved, and copied to target networks. It has no gradient, and its step costs nothing.
    Frozen,
}

impl Role {
    /// Whether it lies in the state arena, and not among the parameters that are optimised.
    pub const fn in_state(self) -> bool {
        matches!(self, Self::State | Self::Frozen)
    }
}

/// How a parameter lies in memory, as against a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stored {
    /// As in the checkpoint.
    AsIs,
    /// A matrix `[OUT, IN]` of the checkpoint lies as `[IN, OUT]`.
    Transposed,
    /// A matrix `[OUT, IN]` of the checkpoint is stored in fewer bits, rounded to the nearest numbers. The elements that hold
    /// it are no numbers: they are copied, and read by the kernels for this packing.
    Packed(Packing),
}

impl Stored {
    const fn kind(self) -> u8 {
        match self {
            Self::AsIs => 0,
            Self::Transposed => 1,
            Self::Packed(_) => 2,
        }
    }
}

/// One parameter tensor of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// Its name in a checkpoint, after the layer's: `weight`. Empty for a layer that is nothing but this: its
    /// own name serves.
    pub name: &'static str,
    /// Its shape in a checkpoint: PyTorch's.
    pub dims: Dims,
    /// How it lies in memory.
    pub stored: Stored,
    /// Its own initialiser.
    pub init: Init,
    /// What it is for.
    pub role: Role,
    /// Whether its initialiser was chosen where the layer is named, so that a model's own leaves it.
    pub decided: bool,
}

impl Leaf {
    /// A parameter.
    pub const fn new(name: &'static str, dims: Dims, role: Role, init: Init) -> Self {
        Self { name, dims, stored: Stored::AsIs, init, role, decided: false }
    }

    /// The same, lying transposed in memory.
    pub const fn transposed(mut self) -> Self {
        self.stored = Stored::Transposed;
        self
    }

    /// The same matrix in fewer bits, [frozen](Role::Frozen): what is rounded does not learn.
    pub const fn packed(mut self, packing: Packing) -> Self {
        (self.stored, self.role) = (Stored::Packed(packing), Role::Frozen);
        self
    }

    /// The same, whose initialiser only `#[init(..)]` replaces, and not a model's.
    pub const fn decided(mut self) -> Self {
        self.decided = true;
        self
    }

    pub(crate) const fn room(&self) -> usize {
        // An impossible dimension is a fault elsewhere.
        if self.dims.is_poison() { 0 } else { at_most(self.elements()).next_multiple_of(ALIGN) }
    }

    /// How many elements it fills.
    pub(crate) const fn elements(&self) -> usize {
        match self.stored {
            Stored::Packed(packing) => {
                packing.slots(self.dims.n_or_one(0), self.dims.product(1, self.dims.rank()).n)
            }
            Stored::AsIs | Stored::Transposed => self.dims.numel(),
        }
    }
}

/// A named part of a module.
#[derive(Clone, Copy, Debug)]
pub struct Child {
    /// The field's name in a checkpoint, which may have dots; empty for one that does not show.
    pub name: &'static str,
    /// What it is.
    pub node: &'static Node,
    /// How many copies there are, named `0`, `1`, …; `None` for a single unnumbered one.
    pub times: Option<usize>,
    /// The initialiser that replaces those below, if any.
    pub init: Option<Init>,
    /// The parameter, by path from this module, whose storage this part uses instead of its own.
    pub tied: Option<&'static str>,
    /// Whether its parameters lie in the state arena, before its state: nobody optimises what lies there.
    pub frozen: bool,
    /// The several layers that it is in a checkpoint, if it is. Their names are in the place of its own, which
    /// is shown only.
    pub pieces: Option<&'static [Piece]>,
}

/// One of several layers of a checkpoint that are one here: some rows of each of its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Its name in the checkpoint.
    pub name: &'static str,
    /// How many rows of the whole it is; `None` if all pieces are alike.
    pub rows: Option<Extent>,
}

impl Piece {
    /// One of several that are alike.
    pub const fn equal(name: &'static str) -> Self {
        Self { name, rows: None }
    }
    /// One with so many rows.
    pub const fn of(name: &'static str, rows: Extent) -> Self {
        Self { name, rows: Some(rows) }
    }
}

impl Child {
    /// A part with storage of its own.
    pub const fn new(name: &'static str, node: &'static Node) -> Self {
        Self { name, node, times: None, init: None, tied: None, frozen: false, pieces: None }
    }
    /// The same, in a checkpoint several layers, each so many rows (first axis) of every parameter: the
    /// projections to query, key and value that are computed as one.
    pub const fn fused(mut self, pieces: &'static [Piece]) -> Self {
        self.pieces = Some(pieces);
        self
    }
    /// The same with another initialiser.
    pub const fn init(mut self, init: Init) -> Self {
        self.init = Some(init);
        self
    }
    /// The same without storage: it uses that of another parameter.
    pub const fn tied(mut self, path: &'static str) -> Self {
        self.tied = Some(path);
        self
    }
    /// The same, not to be optimised.
    pub const fn frozen(mut self) -> Self {
        self.frozen = true;
        self
    }
    /// So many copies.
    pub const fn times(mut self, n: usize) -> Self {
        self.times = Some(n);
        self
    }

    /// The first row and the number of rows of piece `k` of a parameter with so many. What does not add up is a
    /// fault elsewhere.
    pub(crate) const fn rows(&self, k: usize, all: usize) -> (usize, usize) {
        let Some(pieces) = self.pieces else { return (0, all) };
        let (mut first, mut rows, mut i) = (0, 0, 0);
        while i <= k && i < pieces.len() {
            first += rows;
            rows = match pieces[i].rows {
                Some(rows) if rows.is_poison() => 0,
                Some(rows) => rows.n,
                None => all / pieces.len(),
            };
            if rows > all - first {
                rows = all - first;
            }
            i += 1;
        }
        (first, rows)
    }

    pub(crate) const fn copies(&self) -> usize {
        match self.times {
            Some(n) => n,
            None => 1,
        }
    }
    const fn params(&self) -> usize {
        if self.tied.is_some() || self.frozen { 0 } else { times(self.node.params, self.copies()) }
    }
    const fn state(&self) -> usize {
        let params = if self.frozen && self.tied.is_none() { self.node.params } else { 0 };
        times(at_most(params + self.node.state), self.copies())
    }
}

/// The parameters below a layer or module, with their sizes.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// The layer's own parameters.
    pub leaves: &'static [Leaf],
    /// Its parts.
    pub children: &'static [Child],
    /// Whether it stands for its only part, and does not show itself.
    pub(crate) wraps: bool,
    params: usize,
    state: usize,
}

impl Node {
    /// A layer without parameters.
    pub const EMPTY: Self = Self::new(&[], &[]);

    /// From its own parameters and its parts.
    pub const fn new(leaves: &'static [Leaf], children: &'static [Child]) -> Self {
        let (mut params, mut state) = (0, 0);
        let mut i = 0;
        while i < leaves.len() {
            if leaves[i].role.in_state() {
                state += leaves[i].room();
            } else {
                params += leaves[i].room();
            }
            i += 1;
        }
        i = 0;
        while i < children.len() {
            params += children[i].params();
            state += children[i].state();
            i += 1;
        }
        Self { leaves, children, wraps: false, params: at_most(params), state: at_most(state) }
    }

    /// A layer's own parameters.
    pub const fn of(leaves: &'static [Leaf]) -> Self {
        Self::new(leaves, &[])
    }

    /// A layer that does something to another, whose names it takes.
    pub const fn wrapping(inner: &'static [Child; 1]) -> Self {
        Self { wraps: true, ..Self::new(&[], inner) }
    }

    /// Elements of the parameter arena, padding included.
    pub const fn params(&self) -> usize {
        self.params
    }

    /// Elements of the state arena, padding included.
    pub const fn state(&self) -> usize {
        self.state
    }

    /// Where the own parameter `i` starts, in its arena.
    pub const fn leaf_offset(&self, i: usize) -> usize {
        let state = self.leaves[i].role.in_state();
        let (mut at, mut k) = (0, 0);
        while k < i {
            if self.leaves[k].role.in_state() == state {
                at += self.leaves[k].room();
            }
            k += 1;
        }
        at
    }

    /// Where part `i` lies.
    pub const fn field(&self, i: usize) -> Field {
        let (mut params, mut state) = (0, 0);
        let mut k = 0;
        while k < self.leaves.len() {
            if self.leaves[k].role.in_state() {
                state += self.leaves[k].room();
            } else {
                params += self.leaves[k].room();
            }
            k += 1;
        }
        k = 0;
        while k < i {
            params += self.children[k].params();
            state += self.children[k].state();
            k += 1;
        }
        let child = &self.children[i];
        if let Some(path) = child.tied {
            // A tie to nothing is a fault; until it is reported, no other part's parameters must serve instead.
            let (at, len) = match self.find(path) {
                Some((at, _)) => (at, child.node.params),
                None => (0, 0),
            };
            return Field { params: at, params_len: len, state, state_len: child.state() };
        }
        Field { params, params_len: child.params(), state, state_len: child.state() }
    }

    /// The offset and description of the parameter at a dotted path.
    const fn find(&self, path: &str) -> Option<(usize, Leaf)> {
        let mut i = 0;
        while i < self.leaves.len() {
            if same_str(self.leaves[i].name, path) && !self.leaves[i].role.in_state() {
                return Some((self.leaf_offset(i), self.leaves[i]));
            }
            i += 1;
        }
        i = 0;
        while i < self.children.len() {
            let child = &self.children[i];
            // A part of a matrix does not lie as a matrix does.
            let whole =
                child.tied.is_none() && child.times.is_none() && child.pieces.is_none() && !child.frozen;
            if whole
                && let Some(rest) = after(path, child.name)
                && let Some((at, leaf)) = child.node.find(rest)
            {
                return Some((self.field(i).params + at, leaf));
            }
            i += 1;
        }
        None
    }

    /// The first part that is tied to a parameter it can't use, is not made of its pieces, or has a parameter
    /// whose name is another's.
    pub const fn check(&self) -> Option<Fault> {
        let mut i = 0;
        while i < self.children.len() {
            let faults = [self.check_tie(i), self.check_pieces(i), self.check_name(i)];
            let mut k = 0;
            while k < faults.len() {
                if faults[k].is_some() {
                    return faults[k];
                }
                k += 1;
            }
            i += 1;
        }
        None
    }

    /// Whether part `i`, if it is tied, names a parameter it can use.
    pub const fn check_tie(&self, i: usize) -> Option<Fault> {
        let child = &self.children[i];
        let Some(path) = child.tied else { return None };
        let text = Text::new().str("`").str(child.name).str("` can't be tied to `").str(path).str("`: ");
        if child.node.leaves.len() != 1 || !child.node.children.is_empty() {
            return Some(Fault::new(text.str("only a layer with one parameter can be tied")));
        }
        let own = &child.node.leaves[0];
        if own.role.in_state() {
            return Some(Fault::new(text.str("what it has is not optimised, and can't be tied")));
        }
        let Some((_, target)) = self.find(path) else {
            if self.count(path) > 0 {
                let text = text.str("that is frozen, one of several copies, or a part of a fused layer");
                return Some(Fault::new(text));
            }
            return Some(Fault::new(text.str("there is no such parameter in this module")));
        };
        if !own.dims.same(&target.dims) {
            let text = own.dims.write(text.str("it needs "));
            return Some(Fault::new(target.dims.write(text.str(", but that is "))));
        }
        if own.stored.kind() != target.stored.kind() {
            let text = text
                .str("the two lie differently in memory; to reuse an embedding's table take `TiedLinear`");
            return Some(Fault::new(text));
        }
        None
    }

    /// Whether part `i`, if it is several layers of a checkpoint, can be.
    pub const fn check_pieces(&self, i: usize) -> Option<Fault> {
        let child = &self.children[i];
        let Some(pieces) = child.pieces else { return None };
        let mut text = Text::new().str("`").str(child.name).str("` can't be ");
        let (mut sum, mut k) = (Extent::new(0), 0);
        while k < pieces.len() {
            text = text.str(separator(k, pieces.len())).str("`").str(pieces[k].name).str("`");
            if let Some(rows) = pieces[k].rows {
                if let Some(why) = &rows.why {
                    return Some(Fault::new(why.write(text.str(": "))));
                }
                if rows.n == 0 {
                    return Some(Fault::new(text.str(", which has 0 rows")));
                }
                sum = sum.plus(rows);
            }
            k += 1;
        }
        text = text.str(" in one: ");
        if child.node.leaves.is_empty() || !child.node.children.is_empty() {
            return Some(Fault::new(
                text.str("only a layer with parameters of its own is split by their rows"),
            ));
        }
        k = 0;
        while k < child.node.leaves.len() {
            let leaf = &child.node.leaves[k];
            let all = leaf.dims.n_or_one(0);
            let whole = match pieces[0].rows {
                _ if leaf.dims.rank() == 0 => false,
                None => all.is_multiple_of(pieces.len()),
                Some(_) => sum.n == all,
            };
            // An impossible dimension is a fault elsewhere.
            if !whole && !leaf.dims.is_poison() {
                let name = if leaf.name.is_empty() { child.name } else { leaf.name };
                if pieces[0].rows.is_none() {
                    text = text.num(all).str(" rows of `").str(name).str("` are not ");
                    return Some(Fault::new(text.num(pieces.len()).str(" equal parts")));
                }
                let mut p = 0;
                while p < pieces.len() {
                    if let Some(rows) = pieces[p].rows {
                        text = rows.write(text.str(if p > 0 { " + " } else { "" }));
                    }
                    p += 1;
                }
                text = sum.write(text.str(" is ")).str(", but `").str(name).str("` has ");
                return Some(Fault::new(text.num(all).str(" rows")));
            }
            k += 1;
        }
        None
    }

    /// Whether a parameter of part `i` has a name that one of this module's before it has.
    pub const fn check_name(&self, i: usize) -> Option<Fault> {
        // Where no other part's name begins alike, none of its parameters' can be the same.
        let child = &self.children[i];
        let mut found = match child.pieces {
            Some(pieces) if repeats(pieces) => self.twice(child, &Text::new()),
            _ => None,
        };
        let mut k = 0;
        while k < i && found.is_none() {
            if self.children[k].overlaps(child) {
                // Of many copies the first two are looked at; so that another one's namesake is found, from both sides.
                found = match self.twice(child, &Text::new()) {
                    None => self.twice(&self.children[k], &Text::new()),
                    path => path,
                };
            }
            k += 1;
        }
        match found {
            Some(path) => {
                let text = Text::new().str("two parameters would be called `").text(&path);
                Some(Fault::new(text.str("` in a checkpoint")))
            }
            None => None,
        }
    }

    /// The path of the first parameter of `child`, itself at `at`, that `self` has twice.
    const fn twice(&self, child: &Child, at: &Text) -> Option<Text> {
        if child.tied.is_some() {
            return None;
        }
        let mut copy = 0;
        // Copies are alike but for their numbers.
        while copy < child.copies() && copy < 2 {
            let mut k = 0;
            while k < child.names() {
                let mut path = joined(at, child.shown(k));
                if child.times.is_some() {
                    path = joined(&path, Text::new().num(copy).as_str());
                }
                let mut i = 0;
                while i < child.node.leaves.len() {
                    let path = joined(&path, child.node.leaves[i].name);
                    if self.count(path.as_str()) > 1 {
                        return Some(path);
                    }
                    i += 1;
                }
                i = 0;
                while i < child.node.children.len() {
                    let found = self.twice(&child.node.children[i], &path);
                    if found.is_some() {
                        return found;
                    }
                    i += 1;
                }
                k += 1;
            }
            copy += 1;
        }
        None
    }

    /// How many parameters have this path.
    const fn count(&self, path: &str) -> usize {
        let (mut n, mut i) = (0, 0);
        while i < self.leaves.len() {
            n += same_str(self.leaves[i].name, path) as usize;
            i += 1;
        }
        i = 0;
        while i < self.children.len() {
            let child = &self.children[i];
            let mut k = 0;
            while k < child.names() && child.tied.is_none() {
                if let Some(rest) = after(path, child.shown(k)) {
                    n += match child.times {
                        None => child.node.count(rest),
                        Some(times) => match after_number(rest, times) {
                            Some(rest) => child.node.count(rest),
                            None => 0,
                        },
                    };
                }
                k += 1;
            }
            i += 1;
        }
        n
    }
}

impl Child {
    /// How many names it has in a checkpoint.
    pub(crate) const fn names(&self) -> usize {
        match self.pieces {
            Some(pieces) => pieces.len(),
            None => 1,
        }
    }

    pub(crate) const fn shown(&self, k: usize) -> &'static str {
        match self.pieces {
            Some(pieces) => pieces[k].name,
            None => self.name,
        }
    }

    /// Whether a path can begin with a name of both.
    const fn overlaps(&self, other: &Self) -> bool {
        let mut k = 0;
        while k < self.names() {
            let mut l = 0;
            while l < other.names() {
                let (a, b) = (self.shown(k), other.shown(l));
                if after(a, b).is_some() || after(b, a).is_some() {
                    return true;
                }
                l += 1;
            }
            k += 1;
        }
        false
    }
}

/// Whether a name comes twice.
const fn repeats(pieces: &[Piece]) -> bool {
    let mut i = 0;
    while i < pieces.len() {
        let mut k = 0;
        while k < i {
            if after(pieces[i].name, pieces[k].name).is_some()
                || after(pieces[k].name, pieces[i].name).is_some()
            {
                return true;
            }
            k += 1;
        }
        i += 1;
    }
    false
}

/// What stands before the item `k` of a list of `n`.
pub(crate) const fn separator(k: usize, n: usize) -> &'static str {
    if k == 0 {
        ""
    } else if k + 1 == n {
        " and "
    } else {
        ", "
    }
}

/// A path and what follows it, of which either may be empty.
pub(crate) const fn joined(path: &Text, name: &str) -> Text {
    if path.is_empty() || name.is_empty() { path.str(name) } else { path.str(".").str(name) }
}

/// What follows a number below `times` in a path.
const fn after_number(path: &str, times: usize) -> Option<&str> {
    let bytes = path.as_bytes();
    let (mut n, mut i) = (0_usize, 0);
    while i < bytes.len() && bytes[i].is_ascii_digit() {
        n = n.saturating_mul(10).saturating_add((bytes[i] - b'0') as usize);
        i += 1;
    }
    // `01` is no number of a copy.
    if i == 0 || n >= times || (bytes[0] == b'0' && i > 1) || (i < bytes.len() && bytes[i] != b'.') {
        return None;
    }
    match path.split_at_checked(if i < bytes.len() { i + 1 } else { i }) {
        Some((_, rest)) => Some(rest),
        None => None,
    }
}

/// What follows `name` and a dot in `path`; nothing, if they are the same: a raw parameter has no name of its
/// own.
pub(crate) const fn after<'p>(path: &'p str, name: &str) -> Option<&'p str> {
    let (p, n) = (path.as_bytes(), name.as_bytes());
    if n.is_empty() {
        return Some(path);
    }
    if same_str(path, name) {
        return Some("");
    }
    if p.len() <= n.len() || p[n.len()] != b'.' {
        return None;
    }
    let mut i = 0;
    while i < n.len() {
        if p[i] != n[i] {
            return None;
        }
        i += 1;
    }
    match std::str::from_utf8(p.split_at(n.len() + 1).1) {
        Ok(rest) => Some(rest),
        Err(_) => None,
    }
}

/// Where a part's parameters and state lie within its module's.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// First element in the parameter arena.
    pub params: usize,
    /// Elements in the parameter arena.
    pub params_len: usize,
    /// First element in the state arena.
    pub state: usize,
    /// Elements in the state arena.
    pub state_len: usize,
}

impl Field {
    /// The field of a layer without parameters.
    pub const NONE: Self = Self { params: 0, params_len: 0, state: 0, state_len: 0 };
}

const BOUNDS: &str = " (`..` is any length up to a number, without it exactly that)";

/// The rule of a whole module: the first fault of its parts, or what it declares and does not keep.
pub const fn module_rule(
    label: &Text,
    given: &Sig,
    takes: &Sig,
    gives: &Sig,
    found: &Sig,
    from: &str,
    faults: &[Option<Fault>],
) -> Rule {
    let impossible = check_possible(label, "take", takes);
    if impossible.is_none() {
        if given.is_poison() {
            return Rule::ok(*gives);
        }
        if !given.same(takes) {
            let rule = Rule::mismatch(label, takes.write(Text::new()), given, *gives);
            return match rule.fault {
                Some(fault) if given.same_at_bounds(takes) => {
                    Rule { fault: Some(fault.because(BOUNDS)), ..rule }
                }
                _ => rule,
            };
        }
    }
    let mut i = 0;
    while i < faults.len() {
        if faults[i].is_some() {
            return Rule { out: *gives, fault: faults[i] };
        }
        i += 1;
    }
    let fault = match (impossible, check_possible(label, "give", gives)) {
        (Some(fault), _) | (None, Some(fault)) => Some(fault),
        (None, None) => check_declared(label, gives, found, from),
    };
    Rule { out: *gives, fault }
}

/// Whether a module gives what it declares.
pub const fn check_declared(label: &Text, gives: &Sig, found: &Sig, from: &str) -> Option<Fault> {
    if found.is_poison() || found.same(gives) {
        return None;
    }
    let text = Text::new().str("shape mismatch: `").text(label).str("` declares the output ");
    let text = gives.write(text).str(", but ");
    let text = if from.is_empty() { text } else { text.str("`").str(from).str("` ") };
    let text = found.write(text.str(if from.is_empty() || !contains_and(from) { "gives " } else { "give " }));
    Some(Fault::new(text))
}

/// Whether several layers are named.
const fn contains_and(from: &str) -> bool {
    let bytes = from.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] == b' ' {
            return true;
        }
        i += 1;
    }
    false
}

/// `fault` as seen from the module whose field `name` holds the layer.
pub const fn within(fault: Option<Fault>, name: &str, from: &str) -> Option<Fault> {
    match fault {
        Some(fault) => Some(fault.within(name, from)),
        None => None,
    }
}

/// Whether a value that is taken apart has as many tensors as there are names.
pub const fn check_split(given: &Sig, names: usize) -> Option<Fault> {
    if given.is_poison() || given.len() == names {
        return None;
    }
    let text = Text::new().num(names).str(if names == 1 { " name for " } else { " names for " });
    let text = text.num(given.len()).str(if given.len() == 1 {
        " value: this gives "
    } else {
        " values: this gives "
    });
    Some(Fault::new(given.write(text)))
}

/// Whether a layer that is called by its type has no parameters.
pub const fn check_free(label: &Text, tree: &Node) -> Option<Fault> {
    if tree.params() + tree.state() == 0 {
        return None;
    }
    let text = Text::new().str("`").text(label).str("` has parameters: make it a field of the struct");
    Some(Fault::new(text))
}

/// Whether the field `name` is among those that a module's `forward` uses, if that is known. A field without
/// a label is no layer, which is a mistake of its own.
pub const fn check_used(used: Option<&[&str]>, name: &str, label: &Text) -> Option<Fault> {
    match used {
        Some(used) if position(used, name).is_none() && !label.is_empty() => {
            let text =
                Text::new().str("`forward` never uses the field `").str(name).str("`: use it, or remove it");
            Some(Fault::new(text))
        }
        _ => None,
    }
}

/// Whether the dimensions of what a module takes or gives are possible.
pub const fn check_possible(label: &Text, verb: &str, sig: &Sig) -> Option<Fault> {
    let mut i = 0;
    while i < sig.len() {
        let dims = sig.dims(i);
        let mut axis = 0;
        while axis < dims.rank() {
            if let Some(why) = &dims.axis(axis).why {
                let text = Text::new().str("`").text(label).str("` can't ").str(verb).str(" ");
                return Some(Fault::new(why.write(sig.write(text).str(": "))));
            }
            axis += 1;
        }
        i += 1;
    }
    None
}

/// The part that is the field `name`; the name is known to be among `names`.
pub const fn child(node: &'static Node, names: &[&str], name: &str) -> Option<&'static Child> {
    match position(names, name) {
        Some(i) => Some(&node.children[i]),
        None => None,
    }
}

/// Where the field `name` lies; the name is known to be among `names`.
pub const fn field(node: &Node, names: &[&str], name: &str) -> Field {
    match position(names, name) {
        Some(i) => node.field(i),
        None => Field::NONE,
    }
}

const fn position(names: &[&str], name: &str) -> Option<usize> {
    let mut i = 0;
    while i < names.len() {
        if same_str(names[i], name) {
            return Some(i);
        }
        i += 1;
    }
    None
}
