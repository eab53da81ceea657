use crate::Text;
use crate::dims::{Dims, Extent};
use crate::signature::{Kind, Sig};

/// A model that doesn't fit: a message made by the compiler, as data.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    message: Text,
    path: Text,
    from: Text,
    /// Whether it is the input that doesn't fit, so that it matters where that comes from.
    of_input: bool,
}

impl Fault {
    /// From a finished message.
    pub const fn new(message: Text) -> Self {
        Self { message, path: Text::new(), from: Text::new(), of_input: false }
    }

    /// From a finished message that ends in what the layer is given: who gives it is added.
    pub const fn of_input(message: Text) -> Self {
        Self { of_input: true, ..Self::new(message) }
    }

    /// The same, with more to its message.
    pub const fn because(mut self, why: &str) -> Self {
        self.message = self.message.str(why);
        self
    }

    /// The same fault seen from the module that holds the layer in the field `name`, which gets its input
    /// from `from` (empty: the module's own input).
    pub const fn within(mut self, name: &str, from: &str) -> Self {
        if self.of_input && self.path.is_empty() && self.from.is_empty() && !from.is_empty() {
            self.from = self.from.str(from);
        }
        if !name.is_empty() {
            let inner = self.path;
            self.path = Text::new().str(name);
            if !inner.is_empty() {
                self.path = self.path.str(".").text(&inner);
            }
        }
        self
    }

    /// The whole message.
    pub const fn text(&self) -> Text {
        let mut text = self.message;
        if !self.from.is_empty() {
            text = text.str(" by `").text(&self.from).str("`");
        }
        if !self.path.is_empty() {
            text = text.str(", at `").text(&self.path).str("`");
        }
        text
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text().as_str())
    }
}

/// Stops the compiler with the fault's message, at the caller's line.
#[track_caller]
pub const fn accept(fault: &Option<Fault>) {
    if let Some(fault) = fault {
        panic!("{}", fault.text().as_str())
    }
}

/// [`accept`] for the layer in the field `name`, which gets its input from the layer named `from`. The arrow
/// is on the field, so its name is said only if the fault is further in.
#[track_caller]
pub const fn accept_from(fault: &Option<Fault>, name: &str, from: &str) {
    if let Some(fault) = fault {
        let name = if fault.path.is_empty() { "" } else { name };
        panic!("{}", fault.within(name, from).text().as_str())
    }
}

/// A layer's shape rule, evaluated: what it gives, and what is wrong with what it is given.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// What the layer gives. After a fault, what it would have given, so that one mistake gives one message;
    /// [`Sig::POISON`] if that can't be said.
    pub out: Sig,
    /// What is wrong.
    pub fault: Option<Fault>,
}

impl Rule {
    /// A layer that fits.
    pub const fn ok(out: Sig) -> Self {
        Self { out, fault: None }
    }

    /// A fault of the layer, whatever it is given.
    pub const fn wrong(message: Text) -> Self {
        Self { out: Sig::POISON, fault: Some(Fault::new(message)) }
    }

    /// A layer whose arguments contradict each other, or are out of range.
    pub const fn cannot_exist(label: &Text, why: Text) -> Self {
        Self::wrong(Text::new().str("`").text(label).str("` can't exist: ").text(&why))
    }

    /// A layer of which one of the arguments, called `names`, is zero where none can be.
    pub const fn check_positive(label: &Text, names: &[&str], args: &[Extent]) -> Option<Self> {
        let mut i = 0;
        while i < names.len() && i < args.len() {
            if args[i].n == 0 {
                return Some(Self::cannot_exist(label, Text::new().str(names[i]).str(" is 0")));
            }
            i += 1;
        }
        None
    }

    /// A layer that takes something else than it is given; `takes` is that something.
    pub const fn mismatch(label: &Text, takes: Text, given: &Sig, out: Sig) -> Self {
        let text = Text::new().str("shape mismatch: `").text(label).str("` takes ").text(&takes);
        Self { out, fault: Some(Fault::of_input(given.write(text.str(", but it is given ")))) }
    }

    /// The rule of a layer that keeps its input's shape: after a fault it can't be known which of the two is
    /// wrong, and what follows is silent.
    pub const fn keeping(self) -> Self {
        if self.fault.is_some() { Self { out: Sig::POISON, ..self } } else { self }
    }

    /// The layer's arguments are checked first: an impossible one is a fault of this layer.
    pub const fn check_args(label: &Text, args: &[Extent]) -> Option<Self> {
        let mut i = 0;
        while i < args.len() {
            if let Some(why) = &args[i].why {
                return Some(Self::cannot_exist(label, why.write(Text::new())));
            }
            if args[i].length.is_some() {
                return Some(Self::cannot_exist(
                    label,
                    Text::new().str("its arguments can't be bounded dimensions"),
                ));
            }
            i += 1;
        }
        None
    }
}

/// What a layer found when it looked at its input: one tensor, or the rule that ends the matter.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant, reason = "only the compiler ever holds one, and it can't box")]
pub enum Input {
    /// The dimensions to go on with.
    Tensor(Dims),
    /// A fault, or silence after one further up.
    Done(Rule),
}

/// The input of a layer that takes one tensor of real numbers, once its arguments are found possible.
pub const fn one_real(label: &Text, args: &[Extent], given: &Sig) -> Input {
    one(label, args, given, Kind::Real)
}

/// The input of a layer that takes one tensor of indices, once its arguments are found possible.
pub const fn one_ids(label: &Text, args: &[Extent], given: &Sig) -> Input {
    one(label, args, given, Kind::Ids)
}

const fn one(label: &Text, args: &[Extent], given: &Sig, kind: Kind) -> Input {
    if let Some(rule) = Rule::check_args(label, args) {
        return Input::Done(rule);
    }
    if given.is_poison() {
        return Input::Done(Rule::ok(Sig::POISON));
    }
    if given.len() == 1 && given.tensors()[0].kind as u8 == kind as u8 {
        return Input::Tensor(given.dims(0));
    }
    let takes = match kind {
        Kind::Real if given.len() == 1 => "one tensor of numbers",
        Kind::Real => "one tensor",
        Kind::Ids => "one tensor of ids",
    };
    Input::Done(Rule::mismatch(label, Text::new().str(takes), given, Sig::POISON))
}

/// The input of a layer that takes two tensors of real numbers of the same shape.
pub const fn two_equal(label: &Text, given: &Sig) -> Rule {
    if given.is_poison() {
        return Rule::ok(Sig::POISON);
    }
    let t = given.tensors();
    let real = t.len() == 2 && t[0].kind as u8 == Kind::Real as u8 && t[1].kind as u8 == Kind::Real as u8;
    if !real {
        return Rule::mismatch(label, Text::new().str("two tensors"), given, Sig::POISON);
    }
    if t[0].dims.same(&t[1].dims) {
        return Rule::ok(given.nth(0));
    }
    // Which of them is right can't be known, nor what would have followed.
    Rule::mismatch(label, Text::new().str("two tensors of one shape"), given, Sig::POISON)
}

/// A label with its arguments: `Linear<784, 64>`.
pub const fn label(name: &str, args: &[Extent]) -> Text {
    let mut text = Text::new().str(name);
    let mut i = 0;
    while i < args.len() {
        text = args[i].write(text.str(if i == 0 { "<" } else { ", " }));
        i += 1;
    }
    if args.is_empty() { text } else { text.str(">") }
}

/// A label without the trailing arguments that are at their defaults.
pub const fn label_with_defaults(name: &str, args: &[Extent], defaults: &[Option<usize>]) -> Text {
    let mut shown = args.len();
    while shown > 0 {
        match defaults[shown - 1] {
            Some(default) if default == args[shown - 1].n => shown -= 1,
            _ => break,
        }
    }
    label(name, args.split_at(shown).0)
}
