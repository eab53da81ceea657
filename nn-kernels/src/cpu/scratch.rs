use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::{Buffer, par, size::size};
use crate::Pod;

thread_local! {
    /// This thread's buffers that are not in use.
    static FREE: RefCell<Vec<Buffer<u8>>> = const { RefCell::new(Vec::new()) };
}

/// This thread's own memory for some values, whatever they happen to be, until it is dropped.
///
/// A buffer is kept for the next one who asks, so only the first calls allocate. A call within a call (a thread
/// that waits for others may run a piece of something else) gets a buffer of its own.
///
/// This is a value, and not a function that lends memory to a closure, because a closure would be compiled without
/// the features of the instruction set that the kernel around it has.
pub(crate) struct Scratch<T: Pod> {
    /// Always there, until drop takes it.
    buffer: Option<Buffer<u8>>,
    len: usize,
    values: PhantomData<T>,
}

/// The smallest of this thread's buffers that is large enough, so that a larger one is left for who asks next. Where
/// there is none, the smallest makes room for its successor: then there are never fewer, nor smaller ones, than were in
/// use at once, and the same calls find room for all when they come again.
fn kept(bytes: usize) -> Option<Buffer<u8>> {
    FREE.with_borrow_mut(|free| {
        let smallest = |least: usize| {
            let enough = free.iter().enumerate().filter(|(_, buffer)| buffer.len() >= least);
            enough.min_by_key(|(_, buffer)| buffer.len()).map(|(i, _)| i)
        };
        match (smallest(bytes), smallest(0)) {
            (Some(i), _) => Some(free.swap_remove(i)),
            (None, Some(i)) => {
                free.swap_remove(i);
                None
            }
            (None, None) => None,
        }
    })
}

fn keep(buffer: Buffer<u8>) {
    // A thread that is ending has no more use for it.
    let _ = FREE.try_with(|free| free.borrow_mut().push(buffer));
}

fn allocated(bytes: usize) -> Buffer<u8> {
    Buffer::zeroed(bytes).expect("memory for a kernel's scratch")
}

impl<T: Pod> Scratch<T> {
    /// Memory for `len` values.
    pub(crate) fn new(len: usize) -> Self {
        let bytes = size("a kernel's scratch", &[len, size_of::<T>()]);
        let buffer = kept(bytes).unwrap_or_else(|| {
            // The whole pool gets one, so that the first call is the last to allocate, whichever threads take part
            // in later ones.
            par::on_every_thread(|| keep(allocated(bytes)));
            kept(bytes).unwrap_or_else(|| allocated(bytes))
        });
        Self { buffer: Some(buffer), len, values: PhantomData }
    }
}

impl<T: Pod> Deref for Scratch<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.buffer.as_ref().map_or(&[], |buffer| &bytemuck::cast_slice(buffer.whole())[..self.len])
    }
}

impl<T: Pod> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let len = self.len;
        self.buffer
            .as_mut()
            .map_or(&mut [], |buffer| &mut bytemuck::cast_slice_mut(buffer.whole_mut())[..len])
    }
}

impl<T: Pod> Drop for Scratch<T> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            keep(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_buffer_is_another_and_a_later_one_the_same() {
        let mut a = Scratch::<f32>::new(10);
        a.fill(1.0);
        let mut b = Scratch::<f64>::new(100);
        b.fill(2.0);
        assert_eq!(*a, [1.0; 10]);
        let at = b.as_ptr() as usize;
        drop(b);
        assert_eq!(Scratch::<f32>::new(200).as_ptr() as usize, at);
    }

    #[test]
    fn a_small_buffer_leaves_the_large_one() {
        let (large, small) = (Scratch::<f64>::new(1000), Scratch::<f64>::new(10));
        let places = [&large, &small].map(|buffer| buffer.as_ptr() as usize);
        // The large one is asked for last, whichever was given back last.
        drop(small);
        drop(large);
        let (small, large) = (Scratch::<f64>::new(10), Scratch::<f64>::new(1000));
        assert_eq!([&large, &small].map(|buffer| buffer.as_ptr() as usize), places);
        drop(large);
        drop(small);
        let (small, large) = (Scratch::<f64>::new(10), Scratch::<f64>::new(1000));
        assert_eq!([&large, &small].map(|buffer| buffer.as_ptr() as usize), places);
    }
}
