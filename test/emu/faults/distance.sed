# Fault: at the end of rows or keys, the relative bias is read one value beyond its row.
s/- i \/ 2 \* 8, 0), last);/- i \/ 2 * 8, 0), last + 1);/
