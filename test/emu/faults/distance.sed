# Where rows or keys end, what is read of the bias of distances lies one behind its row.
s/- i \/ 2 \* 8, 0), last);/- i \/ 2 * 8, 0), last + 1);/
