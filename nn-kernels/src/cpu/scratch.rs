use std::cell::RefCell;

use super::Buffer;
use crate::Pod;

thread_local! {
    /// This thread's buffers that are not in use.
    static FREE: RefCell<Vec<Buffer<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Lends `f` this thread's own memory for `len` values, whatever they happen to be.
///
/// A buffer is kept for the next call, so only the first calls allocate. A call within a call (a thread that
/// waits for others may run a piece of something else) gets a buffer of its own.
pub(crate) fn with<T: Pod, R>(len: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
    let bytes = len * size_of::<T>();
    let mut buffer = FREE.with_borrow_mut(|free| match free.iter().position(|b| b.len() >= bytes) {
        Some(i) => free.swap_remove(i),
        // One that has become too small makes room for its successor.
        None => {
            free.pop();
            Buffer::zeroed(bytes.next_power_of_two()).expect("memory for a kernel's scratch")
        }
    });
    let result = f(&mut bytemuck::cast_slice_mut(buffer.as_mut_slice())[..len]);
    FREE.with_borrow_mut(|free| free.push(buffer));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_calls_get_memory_of_their_own() {
        with::<f32, _>(10, |a| {
            a.fill(1.0);
            with::<f64, _>(100, |b| b.fill(2.0));
            assert_eq!(a, [1.0; 10]);
        });
    }
}
