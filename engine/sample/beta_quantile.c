#include "engine/sample/beta_quantile.h"

#include <float.h>
#include <math.h>

/* Continued fraction of the incomplete beta function by Lentz's method (Abramowitz and Stegun 26.5.8);
 * converges fast for x up to 1/2. */
static double continued_fraction(double x, double a) {
    double c = 1, d = 1 / (1 - x * 2 * a / (a + 1)), value = d;
    for (int m = 1; m < 500; m++) {
        double even = m * (a - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        double odd = -(a + m) * (2 * a + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        d = 1 / (1 + even * d);
        c = 1 + even / c;
        value *= c * d;
        d = 1 / (1 + odd * d);
        c = 1 + odd / c;
        value *= c * d;
        if (fabs(c * d - 1) < DBL_EPSILON) break;
    }
    return value;
}

/* Cumulative distribution of beta(a, a) at x, for x up to 1/2. */
static double cumulative(double x, double a, double log_beta) {
    return exp(a * (log(x) + log1p(-x)) - log_beta) * continued_fraction(x, a) / a;
}

/* Logarithm of the gamma function. Not lgamma(), which is not thread-safe because of the global signgam. */
static double log_gamma(double x) {
    int sign;
    return lgamma_r(x, &sign);
}

/* Bisection in log(x) for quantiles below 1/2; exact to double after about 60 rounds. */
static double lower_quantile(double part, double a) {
    double log_beta = 2 * log_gamma(a) - log_gamma(2 * a), low = log(DBL_MIN), high = log(0.5);
    if (part <= 0) return 0;
    for (int i = 0; i < 64; i++) {
        double middle = (low + high) / 2;
        *(cumulative(exp(middle), a, log_beta) < part ? &low : &high) = middle;
    }
    return exp((low + high) / 2);
}

double beta_quantile(double part, double a) {
    if (part == 0.5) return 0.5;
    return part < 0.5 ? lower_quantile(part, a) : 1 - lower_quantile(1 - part, a);
}
