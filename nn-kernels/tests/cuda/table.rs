use crate::cases;

cases! {
    rows_are_looked_up_and_their_gradients_added within 1e-6 |t| {
        for (rows, cols, n) in [(1, 1, 1), (5, 3, 40), (100, 33, 70)] {
            let ids: Vec<u32> = (0..n).map(|i| (i * i * 7 % rows) as u32).collect();
            let (ids, table, dy) = (t.upload(&ids), t.random(1, rows * cols), t.random(2, n * cols));
            let (mut y, mut dtable) = (t.room(n * cols), t.random(3, rows * cols));
            t.d.gather(0, cols, D::view(&table), D::view(&ids), D::view_mut(&mut y));
            t.keep_elements("y", &y);
            t.d.scatter_add(cols, D::view(&ids), D::view(&dy), D::view_mut(&mut dtable));
            t.keep_elements("dtable", &dtable);
        }
    }

    ids_out_of_range_get_no_gradient within 1e-6 |t| {
        let (ids, dy, mut dtable) = (t.upload(&[0_u32, 9, 1, 9]), t.random(1, 8), t.random(2, 4));
        t.d.scatter_add(2, D::view(&ids), D::view(&dy), D::view_mut(&mut dtable));
        t.keep_elements("dtable", &dtable);
    }
}
