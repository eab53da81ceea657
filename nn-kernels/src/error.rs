/// What can go wrong with a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device could not provide the memory asked for.
    #[error("out of memory: {bytes} bytes were asked for")]
    OutOfMemory {
        /// How much was asked for.
        bytes: usize,
    },
    /// An index past the end of a table, found out by [`Memory::finish`](crate::Memory::finish).
    #[error("the index {id} is past the end of a table of {rows} rows")]
    IdOutOfRange {
        /// The place of the layer in the model.
        place: u32,
        /// The index.
        id: u32,
        /// How many rows the table has.
        rows: usize,
    },
    /// `NN_ISA` names an instruction set that does not exist or that this machine lacks.
    #[error("NN_ISA={asked}: this machine offers {offered}")]
    UnknownIsa {
        /// The value of the variable.
        asked: String,
        /// What may be asked for here, separated by commas.
        offered: String,
    },
    /// `NN_ROUTE`, or [`Cpu::forcing`](crate::Cpu::forcing), names a route that does not exist.
    #[error("route `{asked}`: there is {offered}")]
    UnknownRoute {
        /// The part that is not understood.
        asked: String,
        /// What may be asked for, separated by commas.
        offered: String,
    },
}
