use nn::*;

struct Net;

fn run(_: Model<Net>) {}

fn main() {}
