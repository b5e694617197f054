/* Quantile function of the symmetric beta distribution, for the "beta" schedules. */
#ifndef SLUICE_SAMPLE_BETA_QUANTILE_H
#define SLUICE_SAMPLE_BETA_QUANTILE_H

/* The x in [0, 1] with cumulative probability `part` under beta(a, a), within 1e-12; a from 0.1 to 10. */
double beta_quantile(double part, double a);

#endif
