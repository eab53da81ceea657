use crate::{Memory, View, ViewMut};

/// Look-ups by index.
pub trait Table: Memory {
    /// `y[i] = table[ids[i]]`, rows of `cols` values. An id out of range gives a row of zeros, and the first
    /// such id is returned; by a device that works behind the host's back nothing is, and
    /// [`finish`](Memory::finish) tells it, and whose it was: the layer's `place`.
    fn gather(
        &self,
        place: u32,
        cols: usize,
        table: View<'_, Self>,
        ids: Self::View<'_, u32>,
        y: ViewMut<'_, Self>,
    ) -> Option<u32>;
    /// `dtable[ids[i]] += dy[i]`, in the order of i for each row of the table, whatever the number of threads.
    /// Ids out of range are passed over.
    fn scatter_add(
        &self,
        cols: usize,
        ids: Self::View<'_, u32>,
        dy: View<'_, Self>,
        dtable: ViewMut<'_, Self>,
    );
}
