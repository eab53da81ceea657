use std::collections::HashMap;

use crate::graph::{Graph, ValueId};

/// Buffers that are reused: which slot each value (forward) and each gradient (vjp) has. Decided here from
/// lifetimes alone; how large a slot is, the compiler works out from the shapes.
#[derive(Default)]
pub(crate) struct Slots {
    /// The slot of each value that has one.
    pub(crate) of: HashMap<ValueId, usize>,
    /// The values each slot holds, one after the other.
    pub(crate) held: Vec<Vec<ValueId>>,
    free: Vec<usize>,
}

impl Slots {
    fn claim(&mut self, value: ValueId) -> usize {
        let slot = match self.free.iter().copied().min() {
            Some(slot) => {
                self.free.retain(|s| *s != slot);
                slot
            }
            None => {
                self.held.push(Vec::new());
                self.held.len() - 1
            }
        };
        self.held[slot].push(value);
        slot
    }

    fn release(&mut self, slot: usize) {
        self.free.push(slot);
    }
}

/// Slots of the values between a module's input and its output.
pub(crate) fn forward(graph: &Graph) -> Slots {
    let mut slots = Slots::default();
    for (k, node) in graph.nodes.iter().enumerate() {
        for value in &node.outputs {
            if !graph.outputs.contains(value) {
                let slot = slots.claim(*value);
                slots.of.insert(*value, slot);
            }
        }
        let done: Vec<_> = slots
            .of
            .iter()
            .filter(|(value, slot)| {
                let used_later = graph.nodes[k + 1..].iter().any(|n| n.inputs.contains(value));
                !used_later && !slots.free.contains(slot) && slots.held[**slot].last() == Some(value)
            })
            .map(|(_, slot)| *slot)
            .collect();
        let mut done = done;
        done.sort_unstable();
        done.into_iter().for_each(|slot| slots.release(slot));
    }
    slots
}

/// What becomes of the gradient that a node computes for one of its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// It is the first to arrive: it is written in place.
    First,
    /// It is added to what is there, by way of a slot.
    Add(usize),
}

/// The gradients of a vjp: slots, and for each node and each of its inputs what becomes of the gradient.
pub(crate) struct Backward {
    pub(crate) slots: Slots,
    /// By node, in forward order.
    pub(crate) writes: Vec<Vec<Write>>,
    /// Outputs of the module that are read inside it too: their gradient starts as a copy.
    pub(crate) copied: Vec<ValueId>,
    /// Values that nobody reads: their gradient is zero.
    pub(crate) zeroed: Vec<ValueId>,
}

pub(crate) fn backward(graph: &Graph) -> Backward {
    let mut slots = Slots::default();
    let inputs: Vec<_> = graph.inputs.iter().map(|i| i.value).collect();
    let inside = |v: &ValueId| graph.nodes.iter().any(|n| n.inputs.contains(v));
    let mut arrived: Vec<ValueId> = Vec::new();
    let (mut copied, mut zeroed) = (Vec::new(), Vec::new());
    for value in graph.outputs.iter().filter(|v| inside(v)) {
        let slot = slots.claim(*value);
        slots.of.insert(*value, slot);
        arrived.push(*value);
        copied.push(*value);
    }
    let mut writes = vec![Vec::new(); graph.nodes.len()];
    for (k, node) in graph.nodes.iter().enumerate().rev() {
        for value in &node.outputs {
            if graph.uses(*value) == 0 {
                let slot = slots.claim(*value);
                slots.of.insert(*value, slot);
                zeroed.push(*value);
            }
        }
        let mut temporary = Vec::new();
        for value in &node.inputs {
            if arrived.contains(value) {
                let slot = slots.claim(*value);
                temporary.push(slot);
                writes[k].push(Write::Add(slot));
            } else {
                if !inputs.contains(value) {
                    let slot = slots.claim(*value);
                    slots.of.insert(*value, slot);
                }
                arrived.push(*value);
                writes[k].push(Write::First);
            }
        }
        temporary.into_iter().for_each(|slot| slots.release(slot));
        for value in &node.outputs {
            if let Some(slot) = slots.of.get(value).copied() {
                slots.release(slot);
            }
        }
    }
    Backward { slots, writes, copied, zeroed }
}
